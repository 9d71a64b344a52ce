-- What operators have decided about single tools, over whatever their descriptions say. It is said of the name: new
-- releases, new versions and servers that list their tools again change nothing about it.

CREATE TABLE security_overlays (
    name       text COLLATE "C" PRIMARY KEY,  -- of a tool
    overlay    json NOT NULL,
    changed_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);
