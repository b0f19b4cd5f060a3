"""Gradients of the portable operations: one ``torch.autograd.Function`` for each, and all of them.

Forward is the operation itself, with its specified bits. Backward is PyTorch's: its products and
formulas at the numbers that went in, as if nothing in forward had been rounded (the
straight-through estimator of Bengio et al., 2013). So the bits of gradients are not specified.

* :mod:`.asked` - whether a gradient is asked for; if not, the operation is called by itself.
* :mod:`.product` - products, and the sum of a product and an adapter's.
* :mod:`.norm`, :mod:`.rotary`, :mod:`.attention`, :mod:`.functions` - what layers are made of.
* :mod:`.mixture` - the weights and the sums of experts.
* :mod:`.refused` - refuses them, of a model for inference.
* :mod:`.log_probs` - what a sampler makes of logits.
"""
