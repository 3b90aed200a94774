"""Render images of simulated scenes: OpenGL backend, renderer and culling of triangles."""
