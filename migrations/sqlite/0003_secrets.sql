-- What all nodes of a cluster share and nobody else may know.
create table secrets (
    name  text primary key,
    value blob not null
) strict;
