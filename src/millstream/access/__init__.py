"""Who may do what: user records, password verifiers, SCRAM on both sides."""
