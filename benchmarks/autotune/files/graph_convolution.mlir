// Two layers of a graph convolution (Kipf and Welling, 2017): 1024 nodes, 8192 edges, 64 channels.
// A linear congruential generator makes the edges. Written for this benchmark.
module @graph_convolution {
  func.func private @layer(%x: tensor<1024x64xf32>, %w: tensor<64x64xf32>, %from: tensor<8192x1xi32>, %to: tensor<8192x1xi32>) -> tensor<1024x64xf32> {
    %messages = "stablehlo.gather"(%x, %from) <{
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      indices_are_sorted = false, slice_sizes = array<i64: 1, 64>
    }> : (tensor<1024x64xf32>, tensor<8192x1xi32>) -> tensor<8192x64xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<1024x64xf32>
    %sums = "stablehlo.scatter"(%zero, %to, %messages) <{
      scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      indices_are_sorted = false, unique_indices = false
    }> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<1024x64xf32>, tensor<8192x1xi32>, tensor<8192x64xf32>) -> tensor<1024x64xf32>
    %all = stablehlo.add %sums, %x : tensor<1024x64xf32>
    %product = stablehlo.dot_general %all, %w, contracting_dims = [1] x [0] : (tensor<1024x64xf32>, tensor<64x64xf32>) -> tensor<1024x64xf32>
    %hidden = stablehlo.maximum %product, %zero : tensor<1024x64xf32>
    return %hidden : tensor<1024x64xf32>
  }

  func.func public @main(%x: tensor<1024x64xf32>, %first: tensor<64x64xf32>, %second: tensor<64x64xf32>) -> tensor<1024x64xf32> {
    %edge = stablehlo.iota dim = 0 : tensor<8192x1xui32>
    %factor = stablehlo.constant dense<1664525> : tensor<8192x1xui32>
    %increment = stablehlo.constant dense<1013904223> : tensor<8192x1xui32>
    %shift = stablehlo.constant dense<22> : tensor<8192x1xui32>
    %product = stablehlo.multiply %edge, %factor : tensor<8192x1xui32>
    %drawn = stablehlo.add %product, %increment : tensor<8192x1xui32>
    %again = stablehlo.multiply %drawn, %factor : tensor<8192x1xui32>
    %high = stablehlo.shift_right_logical %drawn, %shift : tensor<8192x1xui32>
    %higher = stablehlo.shift_right_logical %again, %shift : tensor<8192x1xui32>
    %from = stablehlo.convert %high : (tensor<8192x1xui32>) -> tensor<8192x1xi32>
    %to = stablehlo.convert %higher : (tensor<8192x1xui32>) -> tensor<8192x1xi32>
    %hidden = func.call @layer(%x, %first, %from, %to) : (tensor<1024x64xf32>, tensor<64x64xf32>, tensor<8192x1xi32>, tensor<8192x1xi32>) -> tensor<1024x64xf32>
    %out = func.call @layer(%hidden, %second, %from, %to) : (tensor<1024x64xf32>, tensor<64x64xf32>, tensor<8192x1xi32>, tensor<8192x1xi32>) -> tensor<1024x64xf32>
    return %out : tensor<1024x64xf32>
  }
}
