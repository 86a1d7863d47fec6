"""Privacy: what a run's releases reveal (`fedspan.privacy.audit`), read from its transcript."""
