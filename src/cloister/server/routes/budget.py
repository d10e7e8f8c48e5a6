"""Route of budgets: what every level may spend and has spent."""

from typing import TYPE_CHECKING, Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from cloister.runs.budget import BudgetReport

if TYPE_CHECKING:
    from cloister.app.wiring import App


@get("/v1/budget", summary="Limits and what is spent, level by level", operation_id="getBudget")
async def get_budget(
    app: NamedDependency["App"],
    run: Annotated[
        str | None, QueryParameter(description="A run: the levels it draws from, itself and its attempts.")
    ] = None,
) -> BudgetReport:
    return await app.budget(None if run is None else await app.backbone.resolve(run))


ROUTES = (get_budget,)
