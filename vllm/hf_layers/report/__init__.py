"""Which layers and settings of an engine in hf_compat have Hugging Face's bits, and which do not.

* :mod:`.report` - the table: in the log, as ``LLM.parity_report()``, for ``hf_compat="strict"``.
* :mod:`.layers` - judges each layer of a model.
"""
