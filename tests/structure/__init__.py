"""How the project is built: floors, hooks, sizes."""
