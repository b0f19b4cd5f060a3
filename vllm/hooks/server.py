"""``vllm.entrypoints.launchers`` and ``serve``: the bodies of the routes that generate."""

from vllm.hf_compat.routes import accept_hf_bodies, invocation_types

__all__ = ["accept_hf_bodies", "invocation_types"]
