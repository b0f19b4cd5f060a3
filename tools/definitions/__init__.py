"""Parts of `tools.sweep_definitions`.

* :mod:`.bases` - the configuration that each type of model is tried with; `bases.toml` has them.
* :mod:`.reads` - which fields of it Transformers' class reads.
* :mod:`.values`, :mod:`.ropes` - other values of a field.
* :mod:`.cases` - one configuration, examined as an engine in hf_compat does, and proved.
* :mod:`.proof` - a model of its own sizes, in an engine beside `generate()`.
* :mod:`.sight` - whether a twin shows a value at all.
* :mod:`.children` - a process for each.
* :mod:`.table` - rows and their counts.
"""
