"""Tokens: allowances, Budgets, Holds, the ledger of all of them and what it adds up to."""
