"""The views that a user opens: the grid, the time slider, layers, graph and panel."""
