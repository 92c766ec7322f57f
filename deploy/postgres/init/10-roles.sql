-- Run once by the image's start script, as the superuser, while the volume is empty: the trace store's database, its
-- owner `helios` and a reader `grafana`. The passwords come from mounted files and are never in this one.
-- By hand: psql -v secrets=deploy/secrets -f deploy/postgres/init/10-roles.sql
\set ON_ERROR_STOP on
\if :{?secrets}
\else
\set secrets /run/secrets
\endif
\set helios_password `cat :'secrets'/helios_db_password`
\set grafana_password `cat :'secrets'/grafana_db_password`

-- A division by zero, and so no cluster at all, when a file is missing or too short to be one of make_secrets.sh's.
SELECT 1 / least(length(:'helios_password') / 16, length(:'grafana_password') / 16, 1) AS "password files are readable";

CREATE ROLE helios LOGIN PASSWORD :'helios_password';
CREATE DATABASE helios OWNER helios;
REVOKE ALL ON DATABASE helios FROM PUBLIC;

-- Dashboards read only, whatever a query says, and none of them for longer than half a minute.
CREATE ROLE grafana LOGIN PASSWORD :'grafana_password' CONNECTION LIMIT 20;
ALTER ROLE grafana SET default_transaction_read_only = on;
ALTER ROLE grafana SET statement_timeout = '30s';
GRANT CONNECT ON DATABASE helios TO grafana;

\connect helios
GRANT USAGE ON SCHEMA public TO grafana;
-- For every table and view that Helios makes later.
ALTER DEFAULT PRIVILEGES FOR ROLE helios IN SCHEMA public GRANT SELECT ON TABLES TO grafana;
