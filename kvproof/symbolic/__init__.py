"""Proofs for all sizes: transition relations in Z3, proved inductive and tied to the model."""
