"""Makes Grafana's dashboards: `python -m deploy.dashboards` writes deploy/grafana/dashboards/*.json.

The JSON is committed and provisioned as it is; a test compares it with what this package makes. Each dashboard has a
module of its own; `promql` refuses metrics and labels that the server does not have.
"""
