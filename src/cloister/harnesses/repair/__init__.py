"""The harness that repairs by search, without a model: suspicious lines, rules that change them, the tests as judge."""
