"""Pure mathematics on arrays: no files, no models, no Ray."""
