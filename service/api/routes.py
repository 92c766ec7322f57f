"""Every route of the HTTP interface but the dashboard's."""

from __future__ import annotations

from litestar.types import ControllerRouterHandler

from service.api.catalog_routes import get_catalog, get_ledgers
from service.api.exposition import metrics
from service.api.guard_routes import end_guard, get_guard, open_guard
from service.api.health import index, live, ready
from service.api.inference import chat_completions, completions
from service.api.login import login_page, logout_page, sign_in, sign_out
from service.api.models import get_model, list_models, tokenize
from service.api.policy_routes import get_history, get_policy, put_policy, rollback
from service.api.preview_routes import cancel_preview, get_preview, list_previews, start_preview
from service.api.sql_routes import run_sql
from service.api.trace_routes import get_plan, get_request, list_plans, list_requests, list_runs

ROUTES: tuple[ControllerRouterHandler, ...] = (
    chat_completions,
    completions,
    list_models,
    get_model,
    tokenize,
    get_policy,
    put_policy,
    get_history,
    rollback,
    get_guard,
    open_guard,
    end_guard,
    start_preview,
    list_previews,
    get_preview,
    cancel_preview,
    list_plans,
    get_plan,
    list_requests,
    get_request,
    list_runs,
    get_catalog,
    get_ledgers,
    run_sql,
    live,
    ready,
    metrics,
    login_page,
    sign_in,
    logout_page,
    sign_out,
    index,
)
