"""The attempts of a run: started, forked, ranked, compared."""
