-- Tools and templates under the names that people know, with the vectors that they are found by: made anew whenever
-- vectors can be shown in another way than before. `:embedding` is the column that shows them.

CREATE VIEW tools AS
SELECT v.name AS tool_id, v.name, v.version, COALESCE(n.active = v.version, false) AS is_active,
       v.descriptor ->> 'type' AS type,
       v.descriptor -> 'tags' AS tags,
       v.descriptor -> 'categories' AS categories,
       v.descriptor ->> 'description_short' AS description_short,
       v.descriptor ->> 'description_long' AS description_long,
       v.descriptor -> 'input_schema' AS input_schema,
       v.descriptor -> 'runtime_binding' AS runtime_binding,
       v.descriptor -> 'security_policy' AS security_policy,
       v.descriptor ->> 'effect' AS effect,
       n.owner, v.published_at, s.:embedding AS embedding
FROM catalog_versions v JOIN catalog_names n ON n.kind = v.kind AND n.name = v.name
LEFT JOIN search_documents s ON s.kind = v.kind AND s.name = v.name AND s.version = v.version
WHERE v.kind = 'tool';

CREATE VIEW agent_templates AS
SELECT v.name AS template_id, v.name, v.version, COALESCE(n.active = v.version, false) AS is_active,
       v.descriptor ->> 'base_agent_class' AS base_agent_class,
       v.descriptor -> 'prompt_pack' AS prompt_pack,
       v.descriptor -> 'llm_policy' AS llm_policy,
       v.descriptor -> 'execution_policy' AS execution_policy,
       v.descriptor -> 'tool_policy' AS tool_policy,
       v.descriptor -> 'rules' AS rules,
       v.descriptor -> 'reset_policy' AS reset_policy,
       v.descriptor -> 'memory_policy' AS memory_policy,
       v.descriptor -> 'multi_agent_meta' AS multi_agent_meta,
       n.owner, v.published_at, s.:embedding AS embedding
FROM catalog_versions v JOIN catalog_names n ON n.kind = v.kind AND n.name = v.name
LEFT JOIN search_documents s ON s.kind = v.kind AND s.name = v.name AND s.version = v.version
WHERE v.kind = 'template';
