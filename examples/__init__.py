"""Programs that compose the components with resources of their own."""
