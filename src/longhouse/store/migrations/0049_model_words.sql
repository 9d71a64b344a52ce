-- The last failure of a model endpoint that a worker met, in the endpoint's own words: for operators of any process.
ALTER TABLE workers ADD COLUMN model_words text, ADD COLUMN model_failed_at timestamptz;
