"""What each of several `longhouse serve` processes behind one port runs."""

from functools import partial

from longhouse import background
from longhouse.api.http.siblings import Siblings
from longhouse.app import App, open_app
from longhouse.cli.processes.child import HELP_EVERY, Child, ChildReady, help_out, reached_at
from longhouse.cli.processes.serving import serving_app, until_end
from longhouse.settings import Settings


async def serve_as(child: Child, settings: Settings, *, works: bool) -> None:
    def among(app: App) -> Siblings:
        sockets = [child.socket_of(number) for number in range(child.of)]
        return Siblings(app.asgi, sockets, child.number, settings.root_path)

    with child.listening() as (listener, others):
        async with (
            serving_app(settings, partial(open_app, works=works), in_front=among, others=others) as (
                app,
                served,
                is_open,
            ),
            background.running(
                "others_connections", partial(help_out, others, served.take), every=HELP_EVERY, after=HELP_EVERY
            ),
        ):
            with reached_at(child.socket_of(child.number)) as private:
                child.tell(ChildReady(is_open=is_open, is_demo=app.is_demo))
                await until_end(app, served.serve(sockets=[listener, private]))
