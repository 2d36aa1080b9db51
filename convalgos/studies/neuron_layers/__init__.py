"""What the study of neurons measures: layers of neurons on vectors, their libraries and decompositions."""
