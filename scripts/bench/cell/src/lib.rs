//! Nothing but a dependency: building this builds `libredis_cell.so`.
