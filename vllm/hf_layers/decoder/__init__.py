"""All decoder layers of a step as one operator, where a model is small and has Llama's form."""
