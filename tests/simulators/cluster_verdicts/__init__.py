"""Facts about a managed cluster that an independent model of its rules told: see README.md."""
