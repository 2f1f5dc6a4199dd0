"""The compiled core: hot loops in Cython and C. No policy, no validation; private."""
