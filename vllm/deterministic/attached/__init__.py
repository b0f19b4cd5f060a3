"""Deterministic mode for models of Transformers: their modules, with the portable kernels.

Modules keep their names and classes, of which each becomes a subclass with a portable forward, its
form. Packed weights are made of the parameters, and made anew when these have changed; a model for
inference is sealed: they are made once, and the parameters go.

* :mod:`.model` - gives the modules of a model their forms, or says which one has none.
* :mod:`.support` - which models are refused before anything is changed; :mod:`.holders`,
  :mod:`.hooks`, :mod:`.dropout` - which modules are.
* :mod:`.form` - what a form is. The forms: :mod:`.linear`, :mod:`.mlp`, :mod:`.norm`,
  :mod:`.mixture`, :mod:`.adapters`; :mod:`.activation`, :mod:`.rotary` - what is replaced.
* :mod:`.attention`, :mod:`.interface`, :mod:`.layout` - attention, and where the tokens of a batch
  stand.
* :mod:`.following` - what is made of parameters and follows them; :mod:`.weights` - packed weights.
* :mod:`.sealed` - models for inference; :mod:`.forward` - what others do before a forward.
* :mod:`.gradients` - gradients of the portable operations.
* :mod:`.rehearsal` - runs a model under the guard.
* :mod:`.log_probs` - the engine's log-probabilities of tokens.
"""
