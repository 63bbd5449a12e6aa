"""Declarations of all metrics, their collection from a running gateway, and the documentation page generated from them."""
