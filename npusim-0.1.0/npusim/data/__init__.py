"""Numbers and where they lie: element types, layouts, tensors, products of the cube, errors."""
