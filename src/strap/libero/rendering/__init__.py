"""Pictures of the simulated scenes: the OpenGL backend, the renderer, and what it leaves out."""
