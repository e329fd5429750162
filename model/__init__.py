"""What vLLM does: one module for each vLLM file that it stands for, with its rules and bounds.

Imported as `kvproof.model`; says nothing of what must hold.
"""

if __name__ != "kvproof.model":
    raise ImportError(f"import it as kvproof.model, not as {__name__}: one module, one name")
