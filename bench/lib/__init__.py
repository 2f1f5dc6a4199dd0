"""What the scripts share; ``numpy_reference`` and ``datasets`` serve the tests as well."""
