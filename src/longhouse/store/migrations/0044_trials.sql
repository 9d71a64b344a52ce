-- What the run that holds a session does, with its fence: positive while it may take its worker down, negative while it
-- merely waits. Who takes over knows by that whether the session may have been the cause. Of no other fence it says
-- anything: processes of earlier releases do not write it.
ALTER TABLE sessions ADD COLUMN tried bigint;
