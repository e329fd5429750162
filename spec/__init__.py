"""What must hold: invariants and progress with their kernels; rules, findings and reports in words.

Imported as `kvproof.spec`; knows nothing of how it is searched.
"""

if __name__ != "kvproof.spec":
    raise ImportError(f"import it as kvproof.spec, not as {__name__}: one module, one name")
