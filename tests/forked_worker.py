"""What pytest-xdist has a forked worker do: it sends the text of this file there."""

if __name__ == "__channelexec__":
    from forked_workers import run

    run(channel)  # type: ignore[name-defined]  # noqa: F821 - it is there when this runs
