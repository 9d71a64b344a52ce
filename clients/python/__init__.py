"""The programs in Python: one for each client, in a venv of their own (requirements/clients.lock.txt)."""
