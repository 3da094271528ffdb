//! Edges in compressed sparse rows (CSR).

/// The edges of a graph, grouped by the vertex at one end.
#[derive(Clone, Debug, Default)]
pub struct Csr {
    /// Offset in `columns` at which each row begins, and then the offset at which the last row ends.
    offsets: Vec<usize>,
    /// The vertices at the other ends of the edges, row by row.
    columns: Vec<u32>,
}

impl Csr {
    /// Groups edges by row. Each edge is a pair of row and column.
    pub fn new(rows: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> Csr {
        let mut offsets = vec![0; rows + 1];
        edges.clone().for_each(|(row, _)| offsets[row as usize + 1] += 1);
        let mut sum = 0;
        for offset in &mut offsets {
            sum += *offset;
            *offset = sum;
        }
        let mut next = offsets.clone();
        let mut columns = vec![0; sum];
        for (row, column) in edges {
            let place = &mut next[row as usize];
            columns[*place] = column;
            *place += 1;
        }
        Csr { offsets, columns }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns the number of edges.
    pub fn edges(&self) -> usize {
        self.columns.len()
    }

    /// Returns the columns of a row.
    #[inline]
    pub fn row(&self, row: usize) -> &[u32] {
        &self.columns[self.offsets[row]..self.offsets[row + 1]]
    }

    /// Returns the edges with rows and columns exchanged. `rows` is the number of rows of the result.
    pub(super) fn transposed(&self, rows: usize) -> Csr {
        let edges =
            (0..self.rows()).flat_map(|row| self.row(row).iter().map(move |column| (*column, row as u32)));
        Csr::new(rows, edges)
    }

    /// Splits the rows into `parts` ranges of about equally many edges.
    pub fn split(&self, parts: usize) -> Vec<std::ops::Range<usize>> {
        let bound =
            |part: usize| self.offsets.partition_point(|offset| *offset < self.edges() * part / parts);
        let bounds: Vec<usize> = (0..=parts)
            .map(|part| if part == parts { self.rows() } else { bound(part).min(self.rows()) })
            .collect();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}
