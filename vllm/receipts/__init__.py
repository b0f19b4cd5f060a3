"""Receipts: what an answer was made of, in a form that another machine can compute again.

``docs/receipts.md`` specifies them.
"""
