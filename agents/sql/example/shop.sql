-- A small shop, to try the agent with:  sqlite3 shop.db < shop.sql
CREATE TABLE customers (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  city TEXT NOT NULL
);
CREATE TABLE articles (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  price_cents INTEGER NOT NULL CHECK (price_cents > 0),
  stock INTEGER NOT NULL DEFAULT 0 CHECK (stock >= 0)
);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY,
  customer_id INTEGER NOT NULL REFERENCES customers (id),
  article_id INTEGER NOT NULL REFERENCES articles (id),
  quantity INTEGER NOT NULL CHECK (quantity > 0),
  ordered_on TEXT NOT NULL
);
INSERT INTO customers (id, name, city) VALUES
  (1, 'Anna Berg', 'Oslo'), (2, 'Ben Castro', 'Lisbon'), (3, 'Chloe Dubois', 'Lyon'),
  (4, 'Dan Ekman', 'Oslo'), (5, 'Elif Yilmaz', 'Izmir');
INSERT INTO articles (id, name, price_cents, stock) VALUES
  (1, 'Hand bell', 4900, 12), (2, 'Tower bell', 189000, 1), (3, 'Bell rope', 2600, 40), (4, 'Clapper', 7400, 0);
INSERT INTO orders (id, customer_id, article_id, quantity, ordered_on) VALUES
  (1, 1, 1, 2, '2026-01-14'), (2, 1, 3, 2, '2026-01-14'), (3, 2, 2, 1, '2026-03-02'),
  (4, 3, 1, 1, '2026-03-19'), (5, 4, 3, 6, '2026-05-07'), (6, 2, 3, 4, '2026-06-21');
