"""All that patches import: one module for each area of vLLM whose code calls the fork.

Nothing of the fork imports a hook, so that what stands here may call any part of it.

* :mod:`.engine_args`, :mod:`.config` - engine arguments, and the configuration made of them.
* :mod:`.commands`, :mod:`.llm`, :mod:`.server`, :mod:`.run_batch` - the entrypoints.
* :mod:`.requests`, :mod:`.outputs` - what goes into an engine, and what comes out.
* :mod:`.engine`, :mod:`.processes` - the engine's core, and the processes of a server.
* :mod:`.loaders`, :mod:`.layers` - how models are loaded, and compute.
* :mod:`.weights` - where an update of the weights begins and ends.
* :mod:`.worker`, :mod:`.adapters`, :mod:`.runner`, :mod:`.cpu_platform` - workers and the model
  runner.
"""
