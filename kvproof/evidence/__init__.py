"""What is committed and generated: counterexamples, findings, the matrix, and the pages in docs/.

Writes in the project's folder only; nothing else in the package does.
"""
