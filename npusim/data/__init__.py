"""Data and its layout: element types, layouts, tensors, products of the cube, errors."""
