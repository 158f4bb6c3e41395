"""ModelRoutes: targets, weights, matches, limits."""
