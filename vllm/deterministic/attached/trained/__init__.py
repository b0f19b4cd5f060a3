"""A model of Transformers that trains with the bits of the engine: ``attach(training=True)``.

Its modules keep their names, parameters and classes, of which each becomes a subclass with a
portable forward (:mod:`.classes`). Packed weights are made of the parameters, and made anew when
these have changed.

* :mod:`.model` - changes the modules of a model.
* :mod:`.modules`, :mod:`.mixture`, :mod:`.adapters` - their new classes.
* :mod:`.following` - what is made of parameters and follows them; :mod:`.weights` - packed weights.
* :mod:`.forward` - what is done before a forward; :mod:`.dropout` - refuses dropout.
* :mod:`.attention` - attention.
* :mod:`.log_probs` - the engine's log-probabilities of tokens.
"""
