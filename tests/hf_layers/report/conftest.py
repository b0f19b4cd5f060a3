from tests.loaded_models import load_model

__all__ = ["load_model"]
