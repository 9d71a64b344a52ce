"""Working memory inside agents of other frameworks. Each adapter needs its framework, an extra of ours."""
