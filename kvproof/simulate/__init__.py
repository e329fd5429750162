"""Serving workloads on a simulated clock: the real classes, or the model beside them."""
