-- What may happen: tools and templates in versions that are added and never edited, and which of them is active.

CREATE TABLE catalog_versions (
    kind         text NOT NULL CHECK (kind IN ('tool', 'template')),
    name         text COLLATE "C" NOT NULL,
    version      integer NOT NULL,
    digest       text NOT NULL,        -- of the content: the same content is the same version
    descriptor   json NOT NULL,
    published_by text NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (kind, name, version),
    UNIQUE (kind, name, digest)
);

CREATE TABLE catalog_names (
    kind       text NOT NULL,
    name       text COLLATE "C" NOT NULL,
    owner      text,                            -- NULL: everybody's
    active     integer,                         -- NULL: no version is
    before     integer[] NOT NULL DEFAULT '{}', -- versions that were active before, the latest last: the way back
    retired_at timestamptz,                     -- retired: gone from lists, kept for turns that began with it
    changed_at timestamptz NOT NULL DEFAULT now(),

    PRIMARY KEY (kind, name)
);
-- Names that differ in case alone are found: they would pass for each other.
CREATE INDEX catalog_names_alike ON catalog_names (kind, lower(name));

-- Moves with every change, so that whoever keeps something made from the catalog knows when to look again.
CREATE TABLE catalog_generation (
    kind       text PRIMARY KEY,
    generation bigint NOT NULL
);
INSERT INTO catalog_generation VALUES ('tool', 0), ('template', 0);

-- How often a tool with a rate limit was used, by minute.
CREATE TABLE tool_uses (
    owner  text NOT NULL,
    tool   text NOT NULL,
    minute timestamptz NOT NULL,
    used   integer NOT NULL,

    PRIMARY KEY (owner, tool, minute)
);

-- The roster of instances; rebuildable, since each worker writes down its own.
CREATE TABLE agent_instances (
    instance_id  text PRIMARY KEY,
    template_id  text NOT NULL,
    version      integer NOT NULL,
    status       text NOT NULL CHECK (status IN ('IDLE', 'BUSY', 'RESETTING', 'ERROR', 'STOPPED')),
    node         text NOT NULL,
    worker       text NOT NULL,
    session_id   text,
    last_used_at timestamptz NOT NULL,
    metrics      jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX agent_instances_used ON agent_instances (last_used_at DESC, instance_id DESC);

CREATE VIEW agent_template_tool_policy AS
SELECT v.name AS template_id, v.version, said.rule, tool.name AS tool_name, tool.place
FROM catalog_versions v
CROSS JOIN LATERAL (VALUES
    ('required', v.descriptor #> '{tool_policy,required}'),
    ('allow', v.descriptor #> '{tool_policy,allowlist}'),
    ('deny', v.descriptor #> '{tool_policy,denylist}')
) AS said (rule, names)
CROSS JOIN LATERAL json_array_elements_text(said.names) WITH ORDINALITY AS tool (name, place)
WHERE v.kind = 'template' AND json_typeof(said.names) = 'array';

-- Those who may see all sessions list them whoever owns them; a session keeps both columns as long as it lives.
CREATE INDEX sessions_all ON sessions (created_at DESC, id DESC);
